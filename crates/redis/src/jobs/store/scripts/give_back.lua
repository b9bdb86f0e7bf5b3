-- Undoes a take whose reply never came, and keeps it from being carried out late.
-- Returns how many jobs wait again.
local token = unpack(ARGV, 3)
if is_late then return 0 end
local wrong = wrong_type({ due, claimed, watching }, { state })
if wrong then return wrong end

local returned = 0
if is_resent then
  for _, id in ipairs(cmsgpack.unpack(last_reply)) do
    local owner, attempts, at, allowed, failure = read(id)
    if owner == token and call('ZSCORE', claimed, id) then
      to_due(claimed, id, attempts, at, allowed, failure)
      returned = returned + 1
    end
  end
end
remember(cmsgpack.pack({}))
if returned > 0 then hint() end
return returned
