"""One module per figure of `python -m bench FIGURE`: what it runs, what it compares, how it prints."""
