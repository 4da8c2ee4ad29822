"""FIX 4.4: tag=value codec, dictionary, session and order messages, timestamps. Pure."""
