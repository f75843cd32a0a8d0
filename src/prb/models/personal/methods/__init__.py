"""Methods by family; `prb.models.personal.method` says how to add one."""
