"""The screens: the main one, those behind it, and the dialogs."""
