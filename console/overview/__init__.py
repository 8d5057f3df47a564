"""The first page: whether everything is well; live streams of pages."""
