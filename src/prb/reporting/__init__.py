"""Tables, exports and pages, all made from the files of a run."""
