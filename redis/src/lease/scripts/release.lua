#!lua flags=allow-oom
-- Ends what a nonce acquired, and what a call of that nonce may yet acquire that is still under way.
-- KEYS: holder, ended. ARGV: nonce, how long to remember it in ms, channel.
-- Answers 1 when it was held until now, 2 when that could not be published, 0 when it was not held; a repeated call what the first did.
local before = redis.call('GET', KEYS[2])
if before then
    return tonumber(before)
end
local held = redis.call('GET', KEYS[1])
local was_held = held and string.match(held, '^(%S+)') == ARGV[1]
if was_held then
    local first, asked = string.match(held, '^%S+ %d+ (%S+) %d+ (%d+)$')
    local kept = false
    if first then
        local time = redis.call('TIME')
        kept = asked + 1500 > time[1] * 1000 + math.floor(time[2] / 1000)
    end
    -- It asks again within a second.
    if kept then
        redis.call('SET', KEYS[1], 'kept ' .. first, 'PX', 1200)
    else
        redis.call('DEL', KEYS[1])
    end
end
redis.call('SET', KEYS[2], was_held and 1 or 0, 'PX', ARGV[2])
if was_held then
    -- A hint: whoever may not publish releases all the same.
    local published = redis.pcall('PUBLISH', ARGV[3], '')
    if type(published) == 'table' and published.err then
        return 2
    end
    return 1
end
return 0
