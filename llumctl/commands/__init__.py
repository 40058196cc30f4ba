"""The commands, in a file for each subject: options, orders, following and text stand together.
Heavy modules are imported where they are used, so that help stays fast."""
