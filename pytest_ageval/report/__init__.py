"""What a run tells: the terminal, properties of JUnit XML, HTML, and the data on each test report."""
