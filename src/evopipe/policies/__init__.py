"""Trained members by themselves: they act, value, are saved, loaded, shown and filmed."""
