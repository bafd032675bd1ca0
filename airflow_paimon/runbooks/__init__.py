"""What the DAGs in ``dags/`` are made of, besides the operators: their forms' checks, and what they tell people."""
