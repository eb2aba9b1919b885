"""What charts and reports keep of a run, in bounded memory. Knows no run; pure."""
