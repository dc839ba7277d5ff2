"""`report`: how a class did, as one HTML page and one CSV file."""
