"""The tests of multiors: real servers, real TRL."""
