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
-- How long a turn may last, how many grants it may have, and after how many full turns it may have twice as many.
local TURN, MOST, FULL = 100, 16, 8
-- How long the lease is kept for the process whose turn it is. Longer than it takes that to ask again.
local AGAIN = 20

-- If nobody hears of the release, who waits finds out some time later, so each process is given several grants in its turn. They become more
-- while all processes make use of theirs. When one does not, all have as few as that one, so that none has many times as many as another.
-- Returns whether the turn goes on.
local function take_turn(is_heard, now)
    local others, turn_of, since, grants, most, full = string.match(line, '^(.*;%*)([^;:]+):(%d+):(%d+):(%d+):(%d+)$')
    if not turn_of then
        return false
    end
    grants, most, full = tonumber(grants), tonumber(most), tonumber(full)
    if grants < most and now - since < TURN and not is_heard then
        return true, turn_of
    end
    if grants < most then
        most, full = grants, 0
    elseif full + 1 < FULL then
        full = full + 1
    else
        most, full = math.min(2 * most, MOST), 0
    end
    line = others .. string.format('%s:%s:%d:%d:%d', turn_of, since, grants, most, full)
    return false
end

-- Keeps the lease for the first of those who wait and have asked lately, which asks again within a second, or for the process whose turn it
-- is. Returns whether anybody waits.
local function keep(is_heard)
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local goes_on, turn_of = take_turn(is_heard, now)
    while line ~= '' do
        local first, asked, rest = string.match(line, '^;([^;,]+),%d+,(%d+)(.*)$')
        if not first then
            return false
        end
        if asked + 1500 >= now then
            if goes_on then
                redis.call('SET', KEYS[1], 'kept:' .. turn_of .. line, 'PX', AGAIN)
            else
                redis.call('SET', KEYS[1], 'kept:' .. first .. rest, 'PX', 1200)
            end
            return true
        end
        line = rest
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
