"""Shared by every test."""
