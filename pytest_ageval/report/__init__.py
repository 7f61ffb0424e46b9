"""What a run tells: terminal, properties of JUnit XML, HTML, and the data on each test report."""
