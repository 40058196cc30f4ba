"""The names of our themes, which are known before the themes are imported."""

DEFAULT = "default"
LIGHT = "light"
DEUTERANOPIA = "deuteranopia"
MONOCHROME = "monochrome"
NAMES = (DEFAULT, LIGHT, DEUTERANOPIA, MONOCHROME)
