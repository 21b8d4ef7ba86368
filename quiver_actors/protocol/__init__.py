"""What a client and a worker say to each other: the messages, the table of their tags in `messages`, and their framing."""
