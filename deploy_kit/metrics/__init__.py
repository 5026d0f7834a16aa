"""Reading an engine's metrics text and saying what is in it, what is not, and why. Text in, facts out."""
