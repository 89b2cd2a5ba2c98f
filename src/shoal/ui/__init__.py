"""The web page of runs: `shoal ui`. It reads run folders, and presses few buttons."""
