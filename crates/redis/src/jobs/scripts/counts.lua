#!lua flags=no-writes
-- KEYS: due claimed running dead. Returns how many jobs of a partition wait, run and are dead.
return {
  redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2]),
  redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[4]),
}
