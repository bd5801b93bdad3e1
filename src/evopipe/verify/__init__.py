"""Whether a pipeline gives the same outs again: in two clean clones, or against the lock of another machine."""
