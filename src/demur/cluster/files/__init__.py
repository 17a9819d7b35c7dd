"""Files of points, of local reports and of centres."""
