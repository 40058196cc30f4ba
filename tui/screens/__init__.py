"""The screens: the main one, an instance, requests, tuning, lists; and their dialogs."""
