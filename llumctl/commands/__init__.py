"""The commands, a file for each subject: options, following and text stand together. What is heavy
is imported where it is used, so that help stays fast."""
