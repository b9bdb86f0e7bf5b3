#!lua flags=allow-oom
-- Ends what a nonce acquired, and what a call of that nonce may yet acquire that is still under way.
-- KEYS: holder, ended. ARGV: nonce, how long to remember it in ms, channel.
-- Answers 1 when it was held until now, 2 when that could not be published, 0 when it was not held; a repeated call what the first did.
local before = redis.call('GET', KEYS[2])
if before then
    return tonumber(before)
end
local nonce, line = string.match(redis.call('GET', KEYS[1]) or '', '^([^ ;]+)([^ ]*) %d+$')
local was_held = nonce == ARGV[1]
-- How long a turn lasts, and how long the lease is kept for the process whose turn it is. Longer than it takes that to ask again.
local TURN, AGAIN = 100, 20

-- Keeps the lease for the first of those who wait and have asked lately: it asks again within a second. If nobody hears of the release,
-- who waits finds out some time later, so the process that had it has it several times in a row. Each turn is as long as the others'.
local function keep(is_heard)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local turn_of, since = string.match(line, ';%*([^;,]+),(%d+)$')
    local waiting = line
    while waiting ~= '' do
        local first, asked, rest = string.match(waiting, '^;([^;,]+),%d+,(%d+)(.*)$')
        if not first then
            return false
        end
        if asked + 1500 >= now then
            if turn_of and not is_heard and now - since < TURN then
                redis.call('SET', KEYS[1], 'kept:' .. turn_of .. waiting, 'PX', AGAIN)
            else
                redis.call('SET', KEYS[1], 'kept:' .. first .. rest, 'PX', 1200)
            end
            return true
        end
        waiting = rest
    end
    return false
end

if not was_held then
    redis.call('SET', KEYS[2], 0, 'PX', ARGV[2])
    return 0
end
-- A hint: whoever may not publish releases all the same.
local heard = redis.pcall('PUBLISH', ARGV[3], '')
local is_published = type(heard) == 'number'
if line == '' or not keep(is_published and heard > 0) then
    redis.call('DEL', KEYS[1])
end
redis.call('SET', KEYS[2], 1, 'PX', ARGV[2])
return is_published and 1 or 2
