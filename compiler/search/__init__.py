"""Search: equivalent graphs and other schedules, checked and measured; needs the extra `search`."""
