#!lua flags=no-writes
-- Finds who holds a lease.
-- KEYS: holder. Answers {token, what is left in ms}, or nothing while nobody holds it: also when it is kept for a process that waits.
local held = redis.call('GET', KEYS[1])
if not held or string.match(held, '^kept:[^ ]+$') then
    return false
end
local token = string.match(held, '^[^ ;]+[^ ]* (%d+)$')
-- Too long for a token of ours.
if not token or #token > 16 then
    return redis.error_reply('WRONGTYPE ' .. KEYS[1])
end
return {token, redis.call('PTTL', KEYS[1])}
