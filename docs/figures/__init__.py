"""The drawn figures of the concept pages, made from Python so that they stay true."""
