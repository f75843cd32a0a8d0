"""Methods, one file each; see `prb.models.personal.method` for how to add one."""
