"""The documentation as a site: ``make docs`` builds it out of the pages of the repository and of what the code says."""
