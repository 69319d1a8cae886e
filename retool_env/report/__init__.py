"""Looking at recorded attempts: what is shown of one, in a terminal, as HTML, and many of them as one page."""
