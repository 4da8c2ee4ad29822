"""Trading rules: what each of them is, as a value, and what it does to a book, as a function."""
