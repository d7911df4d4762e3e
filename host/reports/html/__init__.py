"""The HTML page and its data; web/ is the page itself."""
