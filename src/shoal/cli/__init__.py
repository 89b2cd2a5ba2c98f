"""The command line: thin commands that read runs and call the API."""
