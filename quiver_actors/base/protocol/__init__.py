"""The protocol between clients and workers: the messages, the table of their tags in `messages`, and their framing."""
