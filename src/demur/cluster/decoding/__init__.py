"""From reports to clusters: the likelihood of reports under their known noise."""
