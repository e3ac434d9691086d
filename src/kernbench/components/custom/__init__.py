"""A home for blocks of your own; a class in any importable package works as well (`impl: my.module:Class`)."""
