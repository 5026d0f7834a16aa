"""One rank of one candidate. Needs torch and the standard library only, so that this folder can be carried alone."""
