"""What `run.py` and `make_page.py` are made of."""
