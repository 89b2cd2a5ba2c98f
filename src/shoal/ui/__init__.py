"""The web page of runs, `shoal ui`: it shows, starts, stops and resumes runs."""
