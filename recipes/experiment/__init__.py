"""Recipe `experiment`: its variants compared item by item, expectations, reports and plots."""
