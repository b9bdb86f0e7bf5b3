#!lua
-- Takes a lease that nobody holds.
local holder, fence, ended = unpack(KEYS)
-- In ms the ttl, how long the fence is kept, and how long the process has waited; the name of the process, and
-- as `seen` the token of the holder that it found last. Each of the last three is empty where nobody waits, or
-- none was found.
local nonce, ttl, fence_kept, process, waited, seen = unpack(ARGV)
-- Answers three values, each of which may be nothing: the token that was granted; when to ask again in ms,
-- nothing if the lease does not expire; and the token of the holder.
--
-- The holder's key has its nonce and token, and between them the line: the processes that have waited for
-- long, or have been passed over, each as ";" and its name, since when it waits and when it asked last, in
-- ms. A lease that was released is reserved for the first of them for a moment: the key then has "next:" and its
-- name, and after that the rest of the line. Whoever gets it in this way has a ";*" at the end of the line:
-- others want it too, and enter the line at once in its first second.
local held = redis.call('GET', holder)
local held_by, token
local next_in_line, rest = string.match(held or '', '^next:([^ ;]+)([^ ]*)$')
if not next_in_line then
    held_by, rest, token = string.match(held or '', '^([^ ;]+)([^ ]*) (%d+)$')
end
-- Something else has written to the key. A number of more digits is no token of ours.
if held and not next_in_line and not (token and #token <= 16) then
    return redis.error_reply('WRONGTYPE ' .. holder)
end
if held_by == nonce then
    return {token, false, false}
end
local is_free = not held or next_in_line and (process == '' or process == next_in_line)

local time
if is_free or process ~= '' then
    time = redis.call('TIME')
end

local function milliseconds()
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- The line without this process, and without those that have not asked for a while. The order is that of
-- waiting.
local function others()
    local now = milliseconds()
    local line = {}
    for name, since, asked in string.gmatch(rest or '', ';([^;,]+),(%d+),(%d+)') do
        if name ~= process and asked + 1500 >= now and #line < 7 then
            line[#line + 1] = {name, tonumber(since), asked}
        end
    end
    return line, now
end

local function written(line)
    local text = ''
    for _, one in ipairs(line) do
        text = text .. string.format(';%s,%.0f,%.0f', one[1], one[2], one[3])
    end
    return text
end

if not is_free then
    local left = redis.call('PTTL', holder)
    local mark = ''
    -- Whoever has held it for a second holds it for long. A token is the time of its grant,
    -- unless the clock is behind the last one; the mark does not count then.
    if token and process ~= '' and math.abs(milliseconds() - token / 1000) < 1000 then
        mark = string.match(rest, ';%*[^;]*$') or ''
    end
    local is_passed_over = next_in_line or mark ~= '' or seen ~= '' and seen ~= token
    if process ~= '' and (is_passed_over or tonumber(waited) >= 500) then
        local line, now = others()
        local since, position = math.max(0, now - waited), 1
        while line[position] and line[position][2] <= since do
            position = position + 1
        end
        table.insert(line, position, {process, since, now})
        local head = next_in_line and 'next:' .. next_in_line or held_by
        redis.call('SET', holder, head .. written(line) .. mark .. (token and ' ' .. token or ''), 'KEEPTTL')
        -- Where the lease changes hands quickly, it is not reserved for long for one who gets no messages.
        if is_passed_over and left > 25 * position then
            left = 25 * position
        end
    end
    return {false, left >= 0 and left, token or false}
end
-- Given back before it arrived.
if redis.call('EXISTS', ended) == 1 then
    return {false, 0, false}
end
local new = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', fence) or 0) or 0
-- A number that Lua does not represent exactly is none of ours.
if last >= new and last < 9e15 then
    new = last + 1
end
new = string.format('%.0f', new)
local line = ''
if next_in_line then
    line = written(others()) .. ';*'
end
redis.call('SET', holder, nonce .. line .. ' ' .. new, 'PX', ttl)
redis.call('SET', fence, new, 'PX', fence_kept)
return {new, false, false}
