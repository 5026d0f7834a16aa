"""One rank of one candidate. Needs torch and the standard library only: this folder can be carried alone."""
