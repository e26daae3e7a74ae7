"""Child processes: how one is started, asked, heard and ended, and what is said of its end."""
