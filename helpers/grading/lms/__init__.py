"""To and from learning platforms: `collect` takes Canvas and Moodle downloads apart, `export` writes what they take."""
