"""One file for each kind of file or folder that rows are read from."""
