"""Optimization engines that know no statistics: raw arrays in, raw arrays out."""
