-- How the writer's own connections plan: by the indexes, over a table of any size.
SET jit = off; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off;
SET enable_bitmapscan = off; SET enable_mergejoin = off; SET enable_hashjoin = off;
SET random_page_cost = 0.1; SET seq_page_cost = 0.1; SET cpu_tuple_cost = 1; SET cpu_index_tuple_cost = 1;
SET cpu_operator_cost = 0.1; SET max_parallel_workers_per_gather = 0; SET gateway.notify = off
