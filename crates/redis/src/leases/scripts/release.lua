#!lua flags=allow-oom
-- Ends what a nonce acquired, and what a call of that nonce may yet acquire that is still under way.
local holder, ended = unpack(KEYS)
-- For how long to remember it, in ms, and where it is published.
local nonce, remembered, channel = unpack(ARGV)
-- Answers 1 when it was held until now, 2 when that could not be published, 0 when it was not held. A
-- repeated call says 1 in place of 2.
local before = redis.call('GET', ended)
if before then
    return tonumber(before)
end
local held_by, line = string.match(redis.call('GET', holder) or '', '^([^ ;]+)([^ ]*) %d+$')
-- Reserves the lease for the first of those who wait and have asked lately, which asks again within a second.
-- Returns whether anybody waits.
local function reserve()
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    while line ~= '' do
        local first, asked, rest = string.match(line, '^;([^;,]+),%d+,(%d+)(.*)$')
        if not first then
            return false
        end
        if asked + 1500 >= now then
            redis.call('SET', holder, 'next:' .. first .. rest, 'PX', 1200)
            return true
        end
        line = rest
    end
    return false
end

if held_by ~= nonce then
    redis.call('SET', ended, 0, 'PX', remembered)
    return 0
end
-- A hint: whoever may not publish releases all the same.
local is_published = type(redis.pcall('PUBLISH', channel, '')) == 'number'
if line == '' or not reserve() then
    redis.call('DEL', holder)
end
redis.call('SET', ended, 1, 'PX', remembered)
return is_published and 1 or 2
