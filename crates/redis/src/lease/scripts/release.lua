#!lua flags=allow-oom
-- Ends what a nonce acquired, and what a call of that nonce may yet acquire that is still under way.
-- KEYS: holder, ended. ARGV: nonce, how long to remember it in ms, channel.
-- Answers 1 when it was held until now, 0 when not; a repeated call what the first did.
local before = redis.call('GET', KEYS[2])
if before then
    return tonumber(before)
end
local held = redis.call('GET', KEYS[1])
local was_held = held and string.match(held, '^(%S+)') == ARGV[1]
if was_held then
    redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[2], was_held and 1 or 0, 'PX', ARGV[2])
if was_held then
    -- A hint: whoever may not publish releases all the same.
    redis.pcall('PUBLISH', ARGV[3], '')
    return 1
end
return 0
