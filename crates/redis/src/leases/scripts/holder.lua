#!lua flags=no-writes
-- Finds who holds a lease.
local holder = unpack(KEYS)
-- Answers its token and what is left in ms, nothing if the lease does not expire; or nothing at all while
-- nobody holds it: also when it is reserved for a process that waits.
local held = redis.call('GET', holder)
if not held or string.match(held, '^next:[^ ]+$') then
    return false
end
local token = string.match(held, '^[^ ;]+[^ ]* (%d+)$')
-- Too long for a token of ours.
if not token or #token > 16 then
    return redis.error_reply('WRONGTYPE ' .. holder)
end
local left = redis.call('PTTL', holder)
return {token, left >= 0 and left}
