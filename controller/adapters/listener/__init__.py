"""The endpoint's listening socket: bound once, kept, and handed to every frontend."""
